"""Several runs of run.py, one after another or side by side, with one progress bar for them all."""

import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm.auto import tqdm

from training.settings import ROOT, TrainingSettings
from training.trainer.loop import NOT_FINITE
from training.trainer.run_directory import changed_settings, is_finished
from vaswani.errors import UserError
from vaswani.interruption import Interrupted, Interruption
from vaswani.record import read_metrics


SECONDS_BETWEEN_LOOKS = 1.0


@dataclass
class Run:
    """One run of a sweep.

    Parameters
    ----------
    name : str
    arguments : list of str
        Those of run.py.
    settings : TrainingSettings
        The arguments, parsed.
    cost : float
        Operations (FLOPs) of its training: the unit of progress.
    """

    name: str
    arguments: list[str]
    settings: TrainingSettings
    cost: float
    process: subprocess.Popen | None = field(default=None, repr=False)
    error: str | None = None

    @property
    def directory(self) -> Path:
        """Its output directory."""
        return Path(self.settings.run.output_dir)

    @property
    def log(self) -> Path:
        """The file that holds its output."""
        return self.directory.with_suffix(self.directory.suffix + ".log")

    @property
    def is_finished(self) -> bool:
        """Whether it has published its model, and has not been extended since."""
        return is_finished(self.directory)

    @property
    def where_and_when(self) -> str:
        """What it noted of itself when it began: such as "AMD EPYC, 2 cores, bf16, torch 2.13.0, 2026-11-26"."""
        noted = tomllib.loads((self.directory / "recipe.toml").read_text(encoding="utf-8"))["run"]
        return f"{noted['hardware']}, {noted['precision']}, torch {noted['torch']}, {noted['date']}"

    @property
    def text_name(self) -> str:
        """What it trains on, such as "multi30k en-de": a dataset and its configuration, or the names of files."""
        data = self.settings.data
        names = [data.dataset_name] if data.dataset_name else data.train_file or []
        configuration = f" {data.dataset_config_name}" if data.dataset_config_name else ""
        return ", ".join(Path(name).name for name in names) + configuration

    @property
    def has_diverged(self) -> bool:
        """Whether it failed because it learned too fast."""
        return self.error is not None and NOT_FINITE in self.error

    @property
    def is_running(self) -> bool:
        """Whether its process is at work."""
        return self.process is not None and self.process.poll() is None

    def check(self) -> None:
        """Refuse a directory that holds another run, and a name on the Hub that all runs of a sweep would have."""
        name = self.settings.reporting.hub_model_id
        if name is not None:
            raise UserError(
                f"hub_model_id={name!r} must be left out, as by --hub_model_id none: each run's model has the name of "
                "its own folder"
            )
        changed = changed_settings(self.directory, self.settings)
        if changed:
            raise UserError(
                f"{self.directory} holds a run of another recipe ({'; '.join(changed)}): choose another output_dir, "
                "or remove it"
            )

    def share_done(self) -> float:
        """Return the share of its updates that are done."""
        if self.is_finished:
            return 1.0
        steps = [row["step"] for row in read_metrics(self.directory / "metrics.jsonl")]
        return max(steps, default=0) / self.settings.optimization.max_steps

    def go(self, environment: dict[str, str]) -> None:
        """Train to the end, resuming if it had started; on failure, `error` is the last line of its output."""
        resume = ["--resume_from_checkpoint=latest"] if (self.directory / "recipe.toml").exists() else []
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(ROOT / "training" / "run.py"), *self.arguments, *resume]
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            status = self.process.wait()
        if status:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            self.error = next((line for line in reversed(lines) if line.strip()), f"exit status {status}")
        elif not self.is_finished:
            self.error = "it was asked to end"


def run_and_report(
    runs: Sequence[Run], jobs: int, result: Callable[[Run], str], write_report: Callable[[], object] = lambda: None
) -> None:
    """Finish all runs as `run_all` does; write the report at first and after each, and say the result of each."""

    def when_done(run: Run) -> None:
        write_report()
        if run.is_finished:
            print(f"\n{run.name}: {result(run)}", flush=True)

    write_report()
    run_all(runs, jobs, when_done)


def run_all(runs: Sequence[Run], jobs: int, when_done: Callable[[Run], None]) -> None:
    """Finish all runs, `jobs` at a time, the costliest first where several share the machine.

    Each job has a GPU of its own where there are any, else its share of the cores. `when_done` is called with each run
    that has ended.

    Raises
    ------
    UserError
        If some failed, after all others have ended.
    Interrupted
        By a signal, after all have saved.
    """
    waiting = [run for run in runs if not run.is_finished]
    queue = deque(sorted(waiting, key=lambda run: -run.cost) if jobs > 1 else waiting)
    ended: deque[Run] = deque()
    stop = threading.Event()

    def work(number: int) -> None:
        environment = place(number, jobs)
        while not stop.is_set():
            try:
                run = queue.popleft()
            except IndexError:  # another job may have taken the last one
                return
            run.go(environment)
            ended.append(run)

    total, done = sum(run.cost for run in runs), sum(run.cost * run.share_done() for run in runs)
    try:
        with (
            tqdm(total=total, initial=done, desc="Sweep", unit="FLOP", unit_scale=True) as progress,
            ThreadPoolExecutor(jobs) as pool,
        ):
            try:
                with Interruption():
                    workers = [pool.submit(work, number) for number in range(jobs)]
                    while wait(workers, SECONDS_BETWEEN_LOOKS).not_done or ended:
                        show_progress(progress, runs)
                        while ended:
                            when_done(ended.popleft())
                    for worker in workers:
                        worker.result()
            except BaseException:
                stop.set()
                for run in runs:
                    if run.process is not None and run.is_running:
                        run.process.send_signal(signal.SIGTERM)  # it saves and ends
                raise
    except Interrupted:
        print("\nAll progress is saved, the same command resumes", file=sys.stderr)
        raise
    failed = [f"{run.name}: {run.error} (more in {run.log})" for run in runs if run.error is not None]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(runs)} failed; the same command tries them again\n" + "\n".join(failed)
        )


def show_progress(progress: tqdm, runs: Sequence[Run]) -> None:
    """Bring the progress bar up to date."""
    running = [f"{run.name} {run.share_done():.0%}" for run in runs if run.is_running]
    progress.set_postfix_str(", ".join(running), refresh=False)
    progress.n = sum(run.cost * run.share_done() for run in runs)
    progress.initial = min(progress.initial, progress.n)  # a run that was killed repeats what it had not saved
    progress.refresh()


def place(number: int, jobs: int) -> dict[str, str]:
    """Give this thread its share of the cores, which its processes inherit; return their environment and GPU."""
    devices = torch.cuda.device_count()
    if devices:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices)))).split(",")
        return os.environ | {"CUDA_VISIBLE_DEVICES": visible[number % devices]}
    if jobs > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number::jobs] or cores)
    return dict(os.environ)
