"""Run the recorder in its folder: `python tilescope/record ...`. The script's modules must not be shadowed by ours."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_PACKAGE = "_tilescope_record"


def load(name: str) -> ModuleType:
    """Import a module of this folder without the path, as part of a package with a private name."""
    if _PACKAGE not in sys.modules:
        spec = spec_from_file_location(_PACKAGE, Path(__file__).with_name("__init__.py"))
        assert spec is not None
        assert spec.loader is not None
        package = module_from_spec(spec)
        sys.modules[_PACKAGE] = package
        spec.loader.exec_module(package)
    return import_module(f"{_PACKAGE}.{name}")


if __name__ == "__main__":
    del sys.path[0]  # this folder, which Python adds even with -P
    try:
        command = load("command")
    except ImportError as error:
        install = 'Install what is missing: pip install "tilescope[torch]"'
        print(f"{sys.executable}: {error}. {install}")
        sys.exit(2)
    command.main()
