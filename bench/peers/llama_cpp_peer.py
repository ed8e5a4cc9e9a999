"""llama.cpp on the same checkpoint, converted to GGUF, in a process of its own."""

import json
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from baton.bench.contract import Peer
from baton.core.errors import BatonError

_CONVERT_S = 600.0
_ANSWER_S = 600.0  # a batch of prompts on a slow machine


class PeerError(BatonError):
    """A peer that cannot run here or has stopped; the message has the reason."""


class LlamaCppPeer:
    """A llama.cpp process that decodes greedily with its own caches.

    Every wait has a deadline. `close` ends the process.
    """

    def __init__(self, python: Path, source: Path, folder: Path, kind: str, threads: int) -> None:
        """Convert the model and start the process. Raises PeerError.

        python: an interpreter with llama_cpp. source: a llama.cpp source tree, for its converter.
        kind: the type of stored weights (f32, bf16, q8_0).
        """
        self._scratch = tempfile.TemporaryDirectory(prefix="baton-gguf-")
        gguf = Path(self._scratch.name) / "model.gguf"
        try:
            self._run_converter(source, folder, gguf, kind)
        except PeerError:
            self._scratch.cleanup()
            raise
        child = Path(__file__).with_name("llama_cpp_child.py")
        self._errors = (Path(self._scratch.name) / "stderr").open("w+")
        try:
            self._process = subprocess.Popen(
                [str(python), str(child), str(gguf), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            self._errors.close()
            self._scratch.cleanup()
            raise PeerError(f"{python} does not run: {error}") from error

    def prefill(self, prompts: list[tuple[int, ...]]) -> float:
        """Return the seconds until the next token of every prompt is known; all have one length."""
        return float(self._ask(prompts, 0)["prefill_s"])

    def decode_step(self, prompts: list[tuple[int, ...]], steps: int) -> float:
        """Return the median seconds a step."""
        return float(median(self._ask(prompts, steps)["step_s"]))

    def close(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # raised if it has stopped with an unread question
                self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
        self._scratch.cleanup()

    def _run_converter(self, source: Path, folder: Path, gguf: Path, kind: str) -> None:
        if not (source / "convert_hf_to_gguf.py").is_file():
            raise PeerError(f"{source} has no convert_hf_to_gguf.py: not a llama.cpp source tree")
        script = Path(__file__).with_name("llama_cpp_convert.py")
        command = [sys.executable, str(script), str(source), str(folder), str(gguf), kind]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_CONVERT_S)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"conversion to GGUF took over {_CONVERT_S:.0f} s") from error
        if done.returncode:
            raise PeerError(f"conversion to GGUF failed: {_last_line(done.stderr)}")

    def _ask(self, prompts: list[tuple[int, ...]], steps: int) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"prompts": prompts, "steps": steps}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._why()) from None
        ready, _, _ = select.select([stdout], [], [], _ANSWER_S)
        if not ready:
            raise PeerError(f"llama.cpp has not answered for {_ANSWER_S:.0f} s")
        line = stdout.readline()  # one answer a question, so nothing is left in the buffer
        if not line:
            raise PeerError(self._why())
        return json.loads(line)

    def _why(self) -> str:
        self._errors.seek(0)
        return f"llama.cpp stopped: {_last_line(self._errors.read())}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def start(
    python: Path | None, source: Path | None, folder: Path, kind: str, threads: int
) -> LlamaCppPeer | Peer:
    """Start the peer, or return why it is left out."""
    if python is None or source is None:
        return {"skipped": "--llama-cpp and --llama-cpp-source say where llama.cpp is"}
    try:
        return LlamaCppPeer(python, source, folder, kind, threads)
    except PeerError as error:
        return {"skipped": str(error)}
