"""Run a function on several gloo ranks, each a forked process, and collect what they return."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tests.neuron.double import ContractError, parallel

T = TypeVar("T")
PATIENCE = timedelta(seconds=120)


class Failure(str):
    """A rank's traceback, in place of a result."""


def on_ranks(count: int, function: Callable[[], T]) -> list[T]:
    """function() on each of `count` ranks, with torch.distributed initialised.

    Forked, so that `function` may be a closure and nothing is imported twice.

    Raises:
        ContractError: a rank failed; the text holds each failed rank's traceback.
    """
    parallel.warm_imports()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as scratch:
        pipes, processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (rank, count, str(Path(scratch) / "store"), theirs, function)
            process = context.Process(target=_process, args=arguments)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        answers = [_answer(pipe) for pipe in pipes]
        for process in processes:
            process.join()
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    if failures:
        raise ContractError("\n".join(failures))
    return answers


def _answer(pipe: Any) -> Any:
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return Failure("a rank ended without an answer")


def _process(rank: int, count: int, file: str, pipe: Any, function: Callable[[], object]) -> None:
    """One rank; sends its result, or the text of what went wrong."""
    torch.set_num_threads(1)
    store = dist.FileStore(file, count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        pipe.send_bytes(pickle.dumps(function()))
    except BaseException:  # the parent must hear of everything, or it would wait for the others
        pipe.send_bytes(pickle.dumps(Failure(f"rank {rank}:\n{traceback.format_exc()}")))
        raise SystemExit(1) from None
    finally:
        pipe.close()
    dist.destroy_process_group()
