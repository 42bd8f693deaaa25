"""Memory of a process, without any import that has memory of its own to count."""

from pathlib import Path


def resident() -> tuple[float, float]:
    """MB of this process's memory on Linux: now, and at its peak."""
    words = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    now, peak = (1024 * int(words[name].split()[0]) / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak
