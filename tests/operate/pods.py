"""Pods as processes of this machine: as a kubelet runs them, without images.

A pod is a network namespace of its own. Each container runs in a root of its own, which cannot be
written to: this machine's files, and the pod's volumes, as folders, where the container mounts
them. It sees its own processes alone, the first of which is its command. It runs as the user, with
the groups and capabilities, that the pod names, or as the image's user. Linux, root, `ip`.
"""

import asyncio
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from operate.rendered import NAMESPACE, ROOT, Manifest

SLOW = 6  # this machine's cores are shared: a start may take so many times what the chart allows
OWN = {"baton", "dev", "proc", "root", "run", "sys", "tmp"}  # of the machine's folders, made anew
INSIDE_S = 600.0  # of a command in a pod
NOBODY = 65534  # the user of Baton's image


@dataclass
class Pod:
    """One pod of one container.

    spec: a pod template's. netns: the namespace, at address `ip`. folder: for its volumes.
    """

    name: str
    role: str
    spec: Manifest
    netns: str
    ip: str
    folder: Path
    given: Mapping[str, Path]  # volumes that stand for claims, Secrets and ConfigMaps, by name
    hosts: Mapping[str, str]  # addresses by name in DNS
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # for variables, by name
    process: "subprocess.Popen[bytes] | None" = None
    leaving: bool = True  # not ready, or ending: no Service leads to it
    starts: int = 0
    spare_starts: int = 0  # a kubelet starts a container again that ends before it is ready

    @property
    def container(self) -> Manifest:
        found: Manifest = self.spec["containers"][0]
        return found

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def told(self) -> str:
        """Return the end of the log without the lines of requests."""
        lines = [each for each in self.log.splitlines() if '"baton.access"' not in each]
        return "\n".join(each[:600] for each in lines[-40:])

    def volume(self, name: str) -> Path:
        return self.given.get(name) or self.folder / name

    async def start(self) -> None:
        """Start the pod with empty volumes, and wait until its containers have started."""
        self._empty_volumes()
        for each in self.spec.get("initContainers", ()):
            done = await asyncio.to_thread(self._run(each).wait, INSIDE_S)
            assert done == 0, self.log
        self.process = self._run(self.container)
        self.starts += 1
        if "startupProbe" in self.container:
            await self.passes("startupProbe")

    async def passes(self, probe: str) -> None:
        """Wait until a probe succeeds."""
        found = self.container[probe]
        most = max(found.get("failureThreshold", 3), 60)
        ends = time.monotonic() + SLOW * found["periodSeconds"] * most
        while not await self.ask(probe):
            assert self.process is not None
            if self.process.poll() is not None:
                assert self.spare_starts, self.log
                self.spare_starts -= 1
                self.process = self._run(self.container)
            assert time.monotonic() < ends, f"{self.name}: no {probe}\n{self.log}"
            await asyncio.sleep(0.2)
        if probe == "readinessProbe":
            self.leaving = False

    async def ask(self, probe: str) -> bool:
        """Ask once, as a kubelet does, and return whether the probe succeeds."""
        found = self.container[probe]
        get = found["httpGet"]
        scheme = get.get("scheme", "HTTP").lower()
        url = f"{scheme}://{self.ip}:{self.port(get['port'])}{get['path']}"
        try:
            # A kubelet keeps no connection, and asks no server for a certificate that it knows.
            most_s = SLOW * found.get("timeoutSeconds", 1)
            async with httpx.AsyncClient(verify=False, timeout=most_s) as http:
                return 200 <= (await http.get(url)).status_code < 400
        except httpx.TransportError:
            return False

    def port(self, name: str | int) -> int:
        if isinstance(name, int):
            return name
        (found,) = [p["containerPort"] for p in self.container["ports"] if p["name"] == name]
        return int(found)

    async def stop(self, *codes: int) -> float:
        """Stop the pod as a kubelet does: its hook, SIGTERM, and SIGKILL after the grace period.

        codes: with which it may end; 0 if none is named. Return the seconds that it took. Raises
        AssertionError where it had to be killed.
        """
        assert self.process is not None
        self.leaving = True  # endpoints lose it while the hook runs
        begun = time.monotonic()
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook is not None:
            await self.inside(*hook["exec"]["command"])
        self._first().terminate()
        grace = self.spec["terminationGracePeriodSeconds"]
        try:
            code = await asyncio.to_thread(self.process.wait, grace - (time.monotonic() - begun))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} outlived its grace period\n{self.log}") from None
        assert code in (codes or (0,)), self.log
        return time.monotonic() - begun

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children():
                process.kill()  # with it ends every process of its namespace
            self.process.kill()
            self.process.wait()

    async def inside(self, *command: str) -> str:
        """Run a command in the container, as `kubectl exec` does, and return what it prints."""
        words = self._words(self.container | {"command": command, "args": []})
        process = await asyncio.create_subprocess_exec(
            "nsenter", "--target", str(self._first().pid), "--net", "--pid", "--ipc", "--uts",
            "--mount", "--root", "--wd", *words,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await asyncio.wait_for(process.communicate(), INSIDE_S)
        assert process.returncode == 0, said.decode()
        return said.decode()

    def _first(self) -> psutil.Process:
        """Return the container's first process."""
        assert self.process is not None
        (found,) = psutil.Process(self.process.pid).children()
        return found

    def _empty_volumes(self) -> None:
        """Make volumes that are empty folders of the pod's group, and check that others stand."""
        security = self.spec["securityContext"]
        for each in self.spec["volumes"]:
            if "emptyDir" not in each:
                assert self.volume(each["name"]).is_dir(), each
                continue
            shutil.rmtree(self.folder / each["name"], ignore_errors=True)
            made = self.folder / each["name"]
            made.mkdir(parents=True)
            os.chown(made, 0, security["fsGroup"])
            made.chmod(0o2777)
        kernels = Path.home() / ".cache/baton"  # or each pod would compile them for a minute
        if kernels.is_dir():
            cached = self.folder / "temporary/.cache/baton"
            shutil.copytree(kernels, cached)
            for path in (cached.parent, cached, *cached.iterdir()):
                os.chown(path, *self._user())

    def _run(self, container: Manifest) -> "subprocess.Popen[bytes]":
        script = self.folder / f"{container['name']}.sh"
        script.write_text(self._script(container))
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.netns, "unshare", "--mount", "--pid", "--ipc", "--uts",
                 "--mount-proc", "--fork", "sh", "-e", script],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def _user(self) -> tuple[int, int]:
        """Return the user and the group of the pod's processes."""
        security = self.spec["securityContext"]
        return security.get("runAsUser", NOBODY), security.get("runAsGroup", NOBODY)

    def _script(self, container: Manifest) -> str:
        """Return the commands that make the container's root and become its process."""
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        root, hosts = self.folder / "root", self.folder / "hosts"
        root.mkdir(exist_ok=True)
        known = {"localhost": "127.0.0.1", self.name: self.ip, **self.hosts}
        hosts.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
        machine = [p for p in Path("/").iterdir() if p.is_dir() and p.name not in OWN]
        lines = [f"echo {self.name} > /proc/sys/kernel/hostname", "mount --make-rprivate /",
                 f"mount -t tmpfs root {root}"]  # fmt: skip
        for path in machine:
            lines.append(
                f"ln -s {os.readlink(path)} {root}{path}" if path.is_symlink()
                else _bound(path, root, read_only=True)
            )  # fmt: skip
        if Path(sys.base_prefix).parts[1] in OWN:
            lines.append(_bound(Path(sys.base_prefix), root, read_only=True))
        lines += [_bound(Path(path), root, read_only=False) for path in ("/proc", "/dev")]
        lines.append(f"mount --bind {hosts} {root}/etc/hosts")
        sizes = {each["name"]: each.get("emptyDir", {}).get("sizeLimit", "")
                 for each in self.spec["volumes"]}  # fmt: skip
        for each in container["volumeMounts"]:
            if each["mountPath"] == "/dev/shm":
                size = sizes[each["name"]].removesuffix("i")  # 8Gi
                lines.append(f"mount -t tmpfs -o size={size} shm {root}/dev/shm")
                continue
            lines.append(
                _bound(self.volume(each["name"]), root, read_only=each.get("readOnly", False),
                       at=each["mountPath"])
            )  # fmt: skip
        lines.append(f"mount -o remount,ro {root}")
        return "\n".join([*lines, f"exec chroot {root} {shlex.join(self._words(container))}\n"])

    def _words(self, container: Manifest) -> list[str]:
        """Return the command of a container, as its user, in its environment."""
        pod, own = self.spec["securityContext"], container["securityContext"]
        assert own["capabilities"]["drop"] == ["ALL"] and not own["allowPrivilegeEscalation"]
        environment = self._environment(container)

        def filled(word: str) -> str:
            return re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word)

        number, group = self._user()
        user = ["setpriv", f"--reuid={number}", f"--regid={group}", f"--groups={pod['fsGroup']}",
                "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]  # fmt: skip
        path = {"PATH": f"{ROOT}/.venv/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}  # of an image
        variables = [f"{name}={value}" for name, value in (path | environment).items()]
        given = [filled(word) for word in (*container["command"], *container.get("args", ()))]
        # Not in /: Ray would take its folder `baton` for the package, of an editable install.
        return [*user, "env", "-i", "--chdir=/tmp", *variables, *given]

    def _environment(self, container: Manifest) -> dict[str, str]:
        fields = {"metadata.name": self.name, "status.podIP": self.ip,
                  "metadata.namespace": NAMESPACE}  # fmt: skip
        found = {}
        for each in container.get("env", ()):
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "resourceFieldRef" in source:
                assert source["resourceFieldRef"]["resource"] == "limits.cpu"
                limit = container.get("resources", {}).get("limits", {}).get("cpu", os.cpu_count())
                found[each["name"]] = str(limit)
            elif "secretKeyRef" in source:
                named = source["secretKeyRef"]
                found[each["name"]] = self.secrets[named["name"]][named["key"]]
            else:
                found[each["name"]] = each["value"]
        return found


def _bound(source: Path, root: Path, *, read_only: bool, at: str | None = None) -> str:
    target = f"{root}{at or source}"
    line = f"mkdir -p {target} && mount --rbind {source} {target}"
    return f"{line} && mount -o remount,bind,ro {target}" if read_only else line


def mounted(folder: Path, data: Mapping[str, bytes], group: int) -> Path:
    """Write a Secret or a ConfigMap as a kubelet mounts it: links to files of root, which the pod's
    group may read. A second call replaces them all at once."""
    inner = folder / f"..{time.monotonic_ns()}"
    inner.mkdir(parents=True)
    for name, content in data.items():
        path = inner / name
        path.write_bytes(content)
        os.chown(path, 0, group)
        path.chmod(stat.S_IRUSR | stat.S_IRGRP)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(inner.name)
    (folder / "..new").rename(folder / "..data")
    return folder


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder that every user may enter: pods do not run as root."""
    with tempfile.TemporaryDirectory(prefix="baton-pods-") as made:
        Path(made).chmod(0o755)
        yield Path(made)
