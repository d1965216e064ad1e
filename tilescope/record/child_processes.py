"""Make the child processes of a recorded process record, too: environment variables and a `sitecustomize`."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import Values
from .tracebacks import FOLDER

# The environment variable with the id of the process that is being recorded.
RECORDED_PROCESS = "TILESCOPE_RECORDED_PROCESS"

# Python imports this module when a child process starts, instead of one with the same name. Recording starts once the
# child has imported torch.
_SITECUSTOMIZE = """\
import sys
from importlib.util import find_spec

sys.path.remove({folder!r})
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = own


class Recording:
    def find_spec(self, name, *_):
        if name == "torch" and sys.argv[0] != {recorder!r}:
            sys.meta_path.remove(self)
            if spec := find_spec(name):
                run = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (run(module), self.start())
            return spec

    def start(self):
        from runpy import run_path

        try:
            patches = run_path({recorder!r} + "/__main__.py", run_name="recorder")["load"]("patches")
        except ImportError:  # this interpreter has no Triton
            return
        patches.record_child(folder={folder!r}, **{options!r})


sys.meta_path.insert(0, Recording())
"""

# A stand-in for the command of the driver. Libraries ask it for the name or the memory of the GPU.
_NVIDIA_SMI = """\
#!/bin/sh
exec '{python}' -IS -c '
import json, sys
gpu = json.loads(\"\"\"{gpu}\"\"\")
name = gpu["device_name"]
capability = ".".join(map(str, gpu["compute_capability"]))
memory = str(gpu["memory_gib"] << 10) + " MiB"
clock = str(gpu["clock_mhz"]) + " MHz"
values = dict.fromkeys(["name", "gpu_name"], name) | dict.fromkeys(["memory.total", "memory.free"], memory)
values |= {{"compute_cap": capability, "count": "1", "index": "0", "gpu_bus_id": "00000000:01:00.0"}}
values |= {{"memory.used": "0 MiB", "clocks.max.sm": clock, "driver_version": "580.65.06"}}
flags = " ".join(sys.argv[1:]).replace("=", " ").split()
fields = next((flags[n + 1] for n, flag in enumerate(flags) if flag.startswith("--query-gpu")), "").split(",")
if fields[0]:
    rows = [fields] * ("noheader" not in " ".join(flags)) + [[values.get(field, "[N/A]") for field in fields]]
    text = chr(10).join(", ".join(row) for row in rows)
    print(text.replace(" MiB", "").replace(" MHz", "") if "nounits" in " ".join(flags) else text)
elif "-L" in flags:
    print(f"GPU 0: {{name}} (UUID: GPU-00000000-0000-0000-0000-000000000000)")
else:
    print("NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: 13.0")
    print(f"0  {{name}}  0 MiB / {{memory}}")
' "$@"
"""


@contextmanager
def recorded_environment(folder: Path, options: Values) -> Iterator[None]:
    """Change the environment so that child processes record in a folder, unless a parent process has done so.

    Args:
        options: of `recording`.
    """
    variables = {"TORCH_COMPILE_DISABLE": "1", RECORDED_PROCESS: str(os.getpid())}
    hook = folder / "sitecustomize.py"
    if not hook.exists():
        text = _SITECUSTOMIZE.format(folder=str(folder), recorder=str(FOLDER), options=options)
        hook.write_text(text)
        if options["runs"] != "cuda":
            command = folder / "nvidia-smi"
            gpu = json.dumps(options["gpu"])
            command.write_text(_NVIDIA_SMI.format(python=sys.executable, gpu=gpu))
            command.chmod(0o755)
        for name in ("PATH", "PYTHONPATH"):
            paths = filter(None, (str(folder), os.environ.get(name)))
            variables[name] = os.pathsep.join(paths)
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, own in variables.items():
            if os.environ.get(name) == own:  # the script has not changed it
                del os.environ[name]
                if name in before:
                    os.environ[name] = before[name]
