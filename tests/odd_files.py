"""What has the name of a file, and is none that may be read."""

import os

KINDS = ("pipe", "endless", "kernel", "huge")
HUGE = 3073 << 30  # bytes: more than anything has, and as many as whole pictures of CIFAR-10 have


def lay(path, kind):
    """One of `KINDS`: a pipe that nobody writes, zeros without end, what reading waits for, far too much."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(HUGE)
    else:
        path.symlink_to({"endless": "/dev/zero", "kernel": "/proc/kmsg"}[kind])
