"""The script for a GPU runs on a CPU at small size, and its parts for a GPU on a stand-in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu as script
from benchmarks.gpu import PARTS, SIZES, Bench, Measured, Part, WorksOnHalf, differences, is_refused, main
from dpaudit.actors.unit import Inputs
from dpaudit.mechanisms import gpu_memory
from dpaudit.mechanisms.compute import Compute
from tests.fake_gpu import FakeGpu
from tools.rows import read_rows

IN_PROCESS = [name for name in PARTS if name != "workers"]


def values(path: Path) -> dict[tuple[str, str], str]:
    """Return the values of a file by part and name."""
    rows = [(row.settings(), row.value) for row in read_rows(path)]
    return {(conditions["part"], conditions["measured"]): value for conditions, value in rows}


@pytest.mark.parametrize("part", IN_PROCESS)
def test_a_part_runs_on_a_cpu(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.csv"
    assert main(["--size", "small", "--device", "cpu", "--csv", str(path), "--only", part]) == 0
    measured = values(path)
    assert {name for name, _ in measured} == {part}
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "CPU, no GPU, size small"
    assert len(table) == len(measured) + 4
    if part == "memory":
        assert measured[part, "sizes of the stacks that were tried"] == "8, 4, 2, 1"
    if part == "data":
        assert measured[part, "unit 2: bytes copied to the device"] == "384,000", "nothing is kept on a CPU"


def test_two_workers_finish_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    assert main(["--size", "small", "--device", "cpu", "--csv", str(path), "--only", "workers"]) == 0
    measured = values(path)
    assert measured["workers", "both workers finish"] == "yes"
    assert measured["workers", "they train at the same time"] == "yes"


def test_a_failed_or_slow_part_ends_no_other_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a part before its failure are kept, and the exit code is 1."""

    def failing(bench: Bench) -> Iterator[Measured]:
        yield Measured("first", "1")
        raise RuntimeError("several lines\nof | text")

    def slow(bench: Bench) -> Iterator[Measured]:
        yield Measured("before", "2")
        time.sleep(60)

    def good(bench: Bench) -> Iterator[Measured]:
        yield Measured("last", "3")

    parts = {"failing": Part(failing, 9), "slow": Part(slow, 0.05), "good": Part(good, 9)}
    monkeypatch.setattr(script, "PARTS", parts)
    path = tmp_path / "gpu.csv"
    assert main(["--size", "small", "--device", "cpu", "--csv", str(path)]) == 1
    assert values(path) == {
        ("failing", "first"): "1",
        ("failing", "failed"): "RuntimeError: of / text",
        ("slow", "before"): "2",
        ("slow", "failed"): "not finished within 0 s",
        ("good", "last"): "3",
    }
    assert main(["--size", "small", "--device", "cpu", "--csv", str(path), "--seconds", "0"]) == 1
    assert set(values(path)) == {(name, "failed") for name in parts}


def test_a_check_that_does_not_hold_fails_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def unequal(bench: Bench) -> Iterator[Measured]:
        yield from differences("both", np.zeros(2), np.array([0.0, 0.1]))

    monkeypatch.setattr(script, "PARTS", {"unequal": Part(unequal, 9)})
    assert main(["--size", "small", "--device", "cpu"]) == 1
    small = [result.value for result in differences("both", np.zeros(1), np.full(1, 0.01))]
    assert small == ["1.0e-02", "yes"]


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which torch's functions on memory and time do nothing."""
    functions: dict[str, Callable[..., object]] = {
        "synchronize": lambda device: None,
        "init": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: 0,
        "max_memory_allocated": lambda device: 1000,
        "max_memory_reserved": lambda device: 4000,
        "get_device_name": lambda device: "a stand-in",
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(script, "hold_share", lambda compute: None)
    return FakeGpu(monkeypatch)


def test_on_a_gpu_data_move_once(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    arguments = ["--size", "small", "--device", "cuda:0", "--csv", str(tmp_path / "gpu.csv")]
    assert main([*arguments, "--only", "stacks", "dp-sgd", "scores", "data"]) == 0
    measured = values(tmp_path / "gpu.csv")
    assert measured["data", "unit 1: bytes copied to the device"] == "384,000"
    assert [measured["data", f"unit {number} finds the data on the GPU"] for number in (2, 3, 4)] == ["yes"] * 3
    assert ("scores", "small CNN, CPU and device without TF32: within 0.02") in measured


def test_data_that_move_again_are_noticed(fake_gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "RESIDENT_SHARE", 0.0)
    path = tmp_path / "gpu.csv"
    assert main(["--size", "small", "--device", "cuda:0", "--csv", str(path), "--only", "data"]) == 1
    assert values(path)["data", "unit 2 finds the data on the GPU"] == "no"


def test_on_a_gpu_the_stack_is_too_large_for_its_share(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    """The stand-in holds three models; a GPU that holds all of them is noticed."""
    path = tmp_path / "gpu.csv"
    arguments = ["--size", "small", "--device", "cuda:0", "--csv", str(path), "--only", "memory"]
    assert main(arguments) == 1
    assert values(path)["memory", "the stack was too large, and a note says so"] == "no"
    limits: list[Compute] = []

    def hold(compute: Compute) -> None:
        limits.append(compute)
        fake_gpu.largest_stack = 3 if compute.device_share < 1 else 10**12

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "hold_share", hold)
        assert main(arguments) == 0
    assert [compute.device_share < 1 for compute in limits] == [True, False], "the limit ends with the part"
    assert values(path)["memory", "sizes of the stacks that were tried"] == "8, 4, 2"


def test_a_worker_on_half_of_a_gpu_reports_its_peak_and_limit(
    fake_gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    monkeypatch.setattr(script, "is_refused", lambda count, device: refused.append(count) or True)
    task = WorksOnHalf(0, 1, SIZES["small"], str(tmp_path))
    (row,) = task.run(Inputs({}), Compute(device="cuda:0", device_share=0.5)).to_pylist()
    assert (row["peak"], row["limit"], row["refused"]) == (4000, 5 * 10**8, True)
    assert refused == [int(1.1 * 5 * 10**8)]
    assert not is_refused(8, "cpu")
