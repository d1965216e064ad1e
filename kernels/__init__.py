"""The ten kernels, the example scripts and the tours. A package with a `problem.py` is a family of kernels."""

# The experiment and the options with which the page opens: a story that can be told in ten seconds, nine programs that
# load 54 blocks instead of 90. Triton's interpreter runs it quickly, too.
OPENING = {
    "kernel": "matmul.grouped", "M": 576, "N": 576, "K": 288,
    "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_SIZE": 3, "first": 9,
}  # fmt: skip

# Where to begin: a guided tour and states of the page, by the question that they answer.
STARTING_POINTS = {
    "Why grouping?": "tour=why-grouping&stop=1",
    "Is my store coalesced?": "kernel=transpose.flat&tab=requests",
    "Watch a race": "kernel=matmul.split_k_race&tab=result",
}
