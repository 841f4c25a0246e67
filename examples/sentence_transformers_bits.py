"""A bundle of the vectors of any SentenceTransformer; here a random one, that finds by words. Run by the tests."""

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

import bpr
from bpr.integrations.sentence_transformers import STEncoder
from bpr.model import MINI

words = StaticEmbedding(Tokenizer.from_file(str(MINI / "tokenizer.json")), embedding_dim=512)
encoder = STEncoder(SentenceTransformer(modules=[words]))  # or SentenceTransformer("a name on the hub")
passages = [{"id": each, "text": each} for each in ("Homer's Iliad", "snow in May", "moon of Mars")]
bpr.build(passages, "x.bpr", model=encoder)
print(bpr.open("x.bpr", model=encoder).search("who wrote the Iliad?", k=1)[0])
