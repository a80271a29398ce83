"""One contender's process, as the harness sees it: start it, ask it, and be sure that it is gone."""

import json
import os
import queue
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.contenders.place import Place
from bench.environments import ROOT, Contender, interpreter

ANSWER_SECONDS = 180.0


class ContenderFailed(Exception):
    """A contender broke, fell silent, or answered with an error."""


class Process:
    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        python = _interpreter(contender)
        # A session of its own, so that its workers go when it goes and a Ctrl-C reaches the harness alone.
        self._process = subprocess.Popen(
            [python, "-m", contender.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=_environment(),
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.about: dict[str, Any] = self._answer(ANSWER_SECONDS)["about"]
        except ContenderFailed:
            self.close()
            raise

    def ask(
        self, measure: str, place: Place, parameters: dict[str, Any], seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        request = {"measure": measure, "place": place.as_json(), "parameters": parameters}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as problem:
            raise ContenderFailed(f"{self.contender.name} is gone: {problem}") from problem
        answer = self._answer(seconds)
        if "error" in answer:
            trace = answer.get("trace", "")
            raise ContenderFailed(f"{self.contender.name}, {measure}: {answer['error']}\n{trace}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it may be gone already
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        """With everything it started: the whole session is ours."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise ContenderFailed(
                f"{self.contender.name} said nothing for {seconds:g} s and was stopped"
            ) from None
        if not line:
            raise ContenderFailed(f"{self.contender.name} ended with code {self._process.wait()}; see above")
        found: dict[str, Any] = json.loads(line)
        return found


def _interpreter(contender: Contender) -> Path:
    try:
        return interpreter(contender)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise ContenderFailed(f"{contender.name} could not be installed: {problem}") from problem


def _environment() -> dict[str, str]:
    """This tree is importable, behind whatever PYTHONPATH names (so that another copy of rescind can be
    measured), and nobody's own settings change what is measured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RESCIND_")}
    paths = [kept.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "src")]
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
