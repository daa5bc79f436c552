"""Workers: the order of their tasks, what they share, their errors and their ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import CompileConfig, GenerationConfig

from vaswani import workers
from vaswani.errors import UserError
from vaswani.workers import Pool, WorkerEnded, choose_workers, describe_workers, usable_cores


CPU = torch.device("cpu")
pytestmark = [pytest.mark.smoke, pytest.mark.skipif(not workers.CAN_FORK, reason="there is no safe fork here")]


def run(function, tasks=6, number=2):
    with Pool(function, number) as pool:
        return dict(pool.run(range(tasks)))


def is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_every_task_is_done_once_by_some_worker():
    done = run(lambda task: (task * task, os.getpid(), time.sleep(0.05)), 9, 3)
    assert {task: square for task, (square, *_) in done.items()} == {task: task * task for task in range(9)}
    processes = {process for _, process, _ in done.values()}
    assert len(processes) == 3
    assert os.getpid() not in processes
    assert not any(map(is_alive, processes))


def test_tasks_are_begun_in_order():
    begun = run(lambda task: (time.monotonic(), time.sleep(0.1 if task == 0 else 0.02))[0])
    times = [begun[task] for task in range(6)]
    assert times[2:] == sorted(times[2:])
    assert max(times[:2]) < times[2]


@pytest.mark.parametrize(("tasks", "number"), [(3, 1), (1, 4), (0, 2)])
def test_one_worker_or_one_task_is_this_process(tasks, number):
    assert run(lambda task: os.getpid(), tasks, number) == dict.fromkeys(range(tasks), os.getpid())


def test_memory_is_shared():
    weights = torch.ones(2**24)  # 64 MiB

    def private_bytes(task):
        assert weights.sum() == 2**24
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private"))

    assert max(run(private_bytes).values()) < weights.nbytes / 2


def test_a_worker_computes_with_one_thread_even_after_this_process_used_several():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        matrix = torch.rand(600, 600)
        product = matrix @ matrix
        results = run(lambda task: (torch.get_num_threads(), (matrix @ matrix).tolist()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(threads == 1 for threads, _ in results.values())
    torch.testing.assert_close(torch.tensor(results[0][1]), product)


FAULTS = """
import resource, torch
from vaswani.workers import Pool

def faults(task):
    counts = []
    for _ in range(12):  # the first of them may take what a worker has from its parent and never wrote to
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**24)  # 64 MiB, which glibc would return each time
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts)

with Pool(faults, 2) as pool:
    print(max(count for _, count in pool.run(range(6))))
"""


def test_a_worker_keeps_the_memory_that_tensors_free():
    # In a process of its own: the memory of one that has run other tests may be too scattered to keep a block.
    command = [sys.executable, "-c", FAULTS]
    faults = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert faults < 1000  # of pages, of which there are 16,384


def test_samples_of_two_tasks_differ_and_do_not_depend_on_who_does_them():
    samples = []
    for number in (2, 3):
        torch.manual_seed(1)
        samples.append(run(lambda task: torch.rand(()).item(), 6, number))
    assert samples[0] == samples[1]
    assert len(set(samples[0].values())) == 6
    torch.manual_seed(2)
    assert run(lambda task: torch.rand(()).item()) != samples[0]  # the seed of this process decides


def test_an_error_for_the_user_stays_one_sentence_and_another_keeps_its_traceback():
    def refuse(task):
        raise UserError(f"task={task} must be something else")

    def fail(task):
        return [][task]

    with pytest.raises(UserError, match=r"^task=[01] must be something else$"):
        run(refuse)
    with pytest.raises(RuntimeError, match=r"(?s)^in worker [12] of 2:\nTraceback .* in fail\n.*IndexError: "):
        run(fail)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
        (lambda: os._exit(3), "ended with status 3"),
    ],
    ids=["killed", "gone"],
)
def test_a_worker_that_ends_too_early_is_named(end, said):
    with pytest.raises(WorkerEnded, match=f"^worker 2 of 2 {said}$"):
        run(lambda task: end() if task == 1 else time.sleep(0.2))


def test_a_worker_that_is_killed_before_it_gets_another_task_is_named():
    with closing(Pool(lambda task: (os.getpid(), time.sleep(task)), 2).run(range(3))) as done:
        task, (process, _) = next(done)
        assert task == 0
        os.kill(process, signal.SIGKILL)
        with pytest.raises(WorkerEnded, match=r"^worker 1 of 2 was ended by SIGKILL$"):
            list(done)


def test_workers_end_with_the_generator():
    with closing(Pool(lambda task: (os.getpid(), task and time.sleep(600)), 2).run(range(3))) as done:
        _, (process, _) = next(done)
    assert not is_alive(process)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_processes_live_from_one_list_of_tasks_to_the_next():
    with Pool(lambda task: (task, os.getpid()), 2) as pool:
        assert not pool.is_started
        first = dict(pool.run(["one", "two", "three"]))
        assert pool.is_started
        second = dict(pool.run(["four", "five"]))
    assert [first[index][0] for index in range(3)] == ["one", "two", "three"]
    assert [second[index][0] for index in range(2)] == ["four", "five"]
    processes = {process for done in (first, second) for _, process in done.values()}
    assert len(processes) == 2
    assert not any(map(is_alive, processes))
    assert not pool.is_started


def test_after_an_error_there_are_new_processes():
    with Pool(lambda task: os.getpid() if task != "bad" else 1 / 0, 2) as pool:
        before = set(dict(pool.run("abcd")).values())
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            list(pool.run(["good", "bad", "good"]))
        assert not any(map(is_alive, before))
        assert not before & set(dict(pool.run("abcd")).values())


def test_random_numbers_differ_from_task_to_task():
    with Pool(lambda task: torch.rand(()).item(), 2) as pool:
        numbers = [number for _ in range(2) for _, number in pool.run(range(4))]
    assert len(set(numbers)) == 8


ENDLESS = """
import os, time
from vaswani.workers import Pool

def work(task):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)

list(Pool(work, 3).run(range(3)))
"""


def test_workers_end_with_their_parent_even_if_it_is_killed():
    process = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True)
    pids = [int(process.stdout.readline()) for _ in range(3)]
    assert all(map(is_alive, pids))
    process.kill()
    assert process.communicate(timeout=60) == ("", None)  # its end comes when nobody has the pipe open any more
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def test_the_signals_of_a_terminal_are_left_to_the_parent():
    def interrupt(task):
        os.kill(os.getpid(), signal.SIGINT)
        return signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, [])

    assert run(interrupt) == dict.fromkeys(range(6), (signal.SIG_DFL, set()))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@pytest.mark.parametrize("given", [None, "true"])
def test_the_environment_stays_as_it_was(given, monkeypatch):
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    assert set(run(lambda task: os.environ.get(name)).values()) == {"false"}
    assert os.environ.get(name) == given


def test_there_are_as_many_workers_as_threads_and_never_more_than_cores(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # as OMP_NUM_THREADS=3 has it
    assert choose_workers(None, CPU) == 3
    assert choose_workers(4, CPU) == 4
    with pytest.raises(UserError, match=r"^workers=5 must be at most 4, the number of cores that can be used$"):
        choose_workers(5, CPU)


def test_nothing_is_forked_beside_a_gpu_or_where_a_fork_is_not_safe(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 4)
    gpu = torch.device("cuda:1")
    assert choose_workers(None, gpu) == choose_workers(1, gpu) == 1
    with pytest.raises(UserError, match=r"^workers=2 must be 1 here \(device cuda:1, platform "):
        choose_workers(2, gpu)
    monkeypatch.setattr(workers, "CAN_FORK", False)
    assert choose_workers(None, CPU) == 1
    with pytest.raises(UserError, match=r"^workers=2 must be 1 here \(device cpu, platform "):
        choose_workers(2, CPU)


def test_it_is_said_who_computes_and_how(monkeypatch):
    model = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    model.dtype, model.device, model.generation_config = torch.bfloat16, CPU, GenerationConfig()
    assert describe_workers(2, model) == "2 workers of 1 thread each, bfloat16, cpu"
    assert describe_workers(1, model) == f"1 worker of {torch.get_num_threads()} thread(s), bfloat16, cpu"
    model.generation_config.compile_config = CompileConfig()
    assert describe_workers(2, model).startswith("2 workers of 1 thread each, bfloat16, cpu, compiled while the first")
    model.device = torch.device("cuda")
    assert describe_workers(1, model) == "1 worker, bfloat16, cuda, steps recorded"
    model.device = CPU
    monkeypatch.setattr(workers, "is_quantized", lambda model: True)
    assert describe_workers(2, model).startswith("2 workers of 1 thread each, int8, cpu, ")
    monkeypatch.undo()
    model.device, model.generation_config = torch.device("cuda:0"), GenerationConfig()
    assert describe_workers(1, model) == "1 worker, bfloat16, cuda:0"


def test_only_the_cores_that_this_process_may_use_count(monkeypatch):
    monkeypatch.setattr(workers, "CPU_SHARE", Path("absent"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5}, raising=False)
    assert usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("share", "cores"),
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        ("900000 100000", 4),
        ("150000 100000", 1),
        ("50000 100000", 1),
        (None, 4),
    ],
)
def test_a_containers_share_of_the_cores_counts(monkeypatch, tmp_path, share, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(workers, "CPU_SHARE", tmp_path / "cpu.max")
    if share is not None:
        (tmp_path / "cpu.max").write_text(share + "\n", encoding="ascii")
    assert usable_cores() == cores
