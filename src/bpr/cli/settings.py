"""What `bpr train --print-recipe` prints: every setting of a recipe with its default, and a line on what it is for.

training/recipe.py says what settings there are and which values they take; here stands only what a person reads. A
test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

HEAD = """\
# A recipe for `bpr train`: all settings, with their defaults. Leave out what you do not change; only start must be set.
# On the command line: --set epochs=6 --set objective.planes=2"""

EXPLAINED = {
    "start": "where training begins: a folder of transformers weights (or a hub model in the cache), or a bpr model",
    "name": "what the model is called in bpr.json and in the ledger",
    "seed": "of everything that is drawn at random",
    "bits": "of a code; 0: as many as the encoder has outputs",
    "project": "put an orthogonal projection behind the encoder even where the number of bits needs none",
    "question_bias": "whether the question's projection has a bias, which prefers some passages whatever is asked",
    "pooling": '"cls": the first token\'s output, as in the paper; "mean": the mean of all',
    "normalize": "bring the pooled vector to length 1",
    "shared": "one encoder for questions and passages",
    "batch": "questions a step, over all processes",
    "epochs": "how often every question is seen",
    "learning_rate": "at its peak; it falls to 0 linearly (the paper chose it from 1e-5, 2e-5, 3e-5, 5e-5)",
    "head_rate": "the projection's learning rate, in multiples of the others'",
    "freeze": 'what keeps its weights: "nothing", "embeddings" (the word vectors) or "encoders" (projections learn)',
    "warmup": "the share of the steps over which the learning rate rises",
    "weight_decay": "of AdamW",
    "clip": "the longest gradient; longer ones are shortened to it",
    "dropout": "in the encoders, while training",
    "accumulate": "split a batch into so many parts, each with negatives of its own",
    "chunk": "texts encoded at a time, so that a large batch fits (its loss stays the same); 0: all at once",
    "bf16": "compute in bfloat16 on a GPU",
    "compile": "on a GPU through torch.compile: faster after the first half a minute",
    "workers": "processes that prepare batches; 0: none beside the training itself",
    "teacher": "a float model folder whose scores of the questions' passages are distilled (objective.distill)",
    "anchor": "a float model folder whose scores of made-up pairs are distilled (diet.pairs, objective.distill)",
    "teacher_scale": "what the teacher's scores are multiplied by before a softmax",
    "anchor_scale": "what the anchor's scores are multiplied by before a softmax",
    "pair_weight": "of a made-up pair's own losses, a question's being 1; 0, and an anchor, forget least",
    "evaluate_every": "steps between validations, of which the best model is kept; 0: at the end only",
    "save_every": "steps between checkpoints for --resume, beside those of validations; 0: none",
    "pool": "passages in a validation beside those that answer a held-out question",
    "select_by": 'which model is best: "average_rank" (the paper\'s), "top_1", "top_5", "top_20" or "top_100"',
    "log_every": "steps between lines that say how it goes",
    "objective.code": '"bits"; "float" is plain DPR, the twin that codes are compared with',
    "objective.planes": "1: signs, the paper's; 2: a magnitude bit too, better, for twice the bytes",
    "objective.candidates": 'L_cand: "margin", the paper\'s; "cross-entropy", its ablation; or "off"',
    "objective.rerank": "L_rerank",
    "objective.margin": "α of the margin ranking; 2 is one bit of Hamming distance",
    "objective.reduction": 'L_cand as the "mean" over all pairs; the "sum" that the paper prints kills bits',
    "objective.gamma": 'β = sqrt(γ·step + 1) on raw outputs, the paper\'s (0.1); then beta_end = "none"',
    "objective.beta_start": "β at the start, in units of the outputs' spread",
    "objective.beta_end": "β at the end, in units of the outputs' spread: how hard the codes get decides the quality",
    "objective.straight_through": "the share of the last steps with hard codes and a gradient that passes through",
    "objective.scale": "what scores are multiplied by before a softmax",
    "objective.distill": "weight of what the teacher or the anchor teaches",
    "objective.distill_scale": "what the model's own scores are multiplied by there; 0: scale",
    "objective.balance": "weight of a penalty on bits that are mostly on or mostly off",
    "objective.decorrelate": "weight of a penalty on bits that say the same",
    "objective.nested": "lengths of prefixes that shall be good codes themselves, such as [128, 256]",
    "diet.hard": "hard negatives of a question in a batch",
    "diet.hard_pool": "they are drawn from so many of its first; random ones stand in where it has fewer",
    "diet.random": "random negatives of a question in a batch",
    "diet.pairs": "made-up pairs (a sentence asks for the passage that it stands in) for each question, 0 to 1",
    "diet.neighbours": "passages of the same article that each of them brings along",
    "diet.titles": "how often a passage shows its title",
    "diet.question_length": "tokens of a question that are read",
    "diet.passage_length": "tokens of a passage that are read, its title included",
}


READER_HEAD = """\
# A recipe for `bpr train-reader`: all settings, with their defaults, the paper's for BERT-base. Only start must be set.
# For ELECTRA-large the paper has negatives = 17 and learning_rate = 1e-5."""

READER_EXPLAINED = {
    **EXPLAINED,
    "start": "where training begins: transformers weights, a bpr model (its passage encoder), or a reader",
    "name": "what the reader is called in reader.json and in the ledger",
    "length": "tokens of question, title and text together",
    "question_length": "tokens of a question that are read",
    "token_types": "title and text are segment 1, as BERT's own pairs are; otherwise all is segment 0",
    "negatives": "passages without the answer that stand beside each positive, drawn from what was retrieved",
    "spans": '"first": the first place of the answer counts; "marginal": all of its places together (DPR)',
    "over": '"passage": tokens compete within a passage; "question": over all passages of a question',
    "batch": "questions a step, over all processes, each with its positive and its negatives",
    "learning_rate": "at its peak; it falls to 0 linearly",
    "accumulate": "split a batch into so many parts",
    "validate": "held-out questions in a validation; 0: all",
    "passages": "that a validation reads for each question, and the reader later unless told otherwise",
    "select_by": 'which reader is best: "em" or "f1" of those passages, "gold_em" or "gold_f1" of the gold one alone',
}


def as_toml(settings: Mapping[str, Any], head: str = HEAD, explained: Mapping[str, str] = EXPLAINED) -> str:
    """The settings (of Recipe.to_dict) as TOML, each below the line that explains it."""
    lines = [head]
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    for table, values in {"": settings, **tables}.items():
        lines += ["", f"[{table}]"] if table else []
        for key, value in values.items():
            if not isinstance(value, Mapping):
                text = explained.get(f"{table}.{key}" if table else key)
                lines += ["", *([f"# {text}"] if text else []), f"{key} = {_value(value)}"]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # JSON's numbers, strings, booleans and lists are TOML's too; it has no null, which a recipe spells "none".
    return json.dumps("none" if value is None else value, ensure_ascii=False)
