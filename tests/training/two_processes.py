"""Two processes that train together as under torchrun: test_trainer.py starts this file.

argv: a folder with cases.json (settings of each case) and the toy world, and a free port. Rank 0 writes what it saw of
each case's first step. The second process is forked off when everything is imported, which is what takes long.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from toys import Toy, first_step

from bpr.training import run as run  # imported before the fork
from bpr.training.prepared import Prepared


def work(folder: Path, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    toy = Toy(folder / "tokenizer.json", folder / "start", folder / "passages", [], Prepared.load(folder / "data"))
    for name, settings in json.loads((folder / "cases.json").read_text()).items():
        step = first_step(toy, toy.recipe(**settings), folder / name)
        assert dist.get_world_size() == 2 and dist.get_rank() == rank
        if rank == 0:
            save_file({"sigma": step.sigma, **step.gradients}, folder / f"{name}.safetensors")
            (folder / f"{name}.json").write_text(json.dumps(step.parts))
    dist.destroy_process_group()


def main(folder: Path, port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    gc.freeze()
    child = os.fork()
    if not child:
        work(folder, 1)
        return
    work(folder, 0)
    if os.waitpid(child, 0)[1]:
        sys.exit("the second process failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
