"""Scripts for `tilescope show`: common kernels, one per file. Each file's docstring says what to look for."""

from pathlib import Path

# Their paths, in the order of the page's menu.
EXAMPLES = tuple(
    str(Path(__file__).with_name(f"{name}.py"))
    for name in (
        "vector_add",
        "softmax",
        "layer_norm",
        "attention",
        "gather",
        "histogram",
        "convolution",
    )
)
