"""Reads the NVML child's messages beside a load, and compares them with nvidia-smi. Standard library only.

A figure of nvidia-smi agrees when it lies between the least and the largest that the child read while nvidia-smi ran,
give or take the MiB to which nvidia-smi rounds.
"""

import argparse
import json
import shlex
import subprocess
import sys
import threading
import time
from collections import defaultdict

MIB = 1 << 20
NS = 1_000_000_000
FIGURES = ["total", "reserved", "used", "free"]
COMPARE_EVERY_SECONDS = 1.0
# Readings this long before nvidia-smi started and after it ended are compared as well; they come ten times a second.
SLACK_NS = NS // 4
# The same for process lists, which come once a second.
LIST_SLACK_NS = NS * 5 // 4
GROWTH_SEEN = 0.9


class Child:
    """The NVML child and what it told so far."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.readings = defaultdict(list)
        self.lists = defaultdict(list)
        self.events = []
        self.health = None
        self.bye = None
        self.lock = threading.Lock()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            kind = message["type"]
            with self.lock:
                if kind == "reading":
                    self.readings[message["device"]["uuid"]].append(message)
                elif kind == "processes":
                    self.lists[message["device"]["uuid"]].append(message)
                elif kind == "event":
                    self.events.append(message)
                elif kind == "health":
                    self.health = message
                elif kind == "bye":
                    self.bye = message

    def window(self, uuid, start_ns, end_ns):
        """Memory read in this time, with what was read last before it."""
        inside = lambda one: one["span"]["not_after_ns"] >= start_ns and one["span"]["not_before_ns"] <= end_ns
        with self.lock:
            return [one["memory"] for one in self.readings[uuid] if "memory" in one and inside(one)]

    def process_memory(self, uuid, pid, start_ns, end_ns):
        """Bytes that the lists of this time tell of a process."""
        start_ns, end_ns = start_ns - LIST_SLACK_NS, end_ns + LIST_SLACK_NS
        with self.lock:
            lists = [one for one in self.lists[uuid] if start_ns <= one["span"]["not_after_ns"] <= end_ns]
        told = [process for list_ in lists for process in list_["processes"] if process["pid"] == pid]
        return [process["used_bytes"] for process in told if "used_bytes" in process]

    def end(self):
        started = time.monotonic()
        self.process.stdin.close()
        self.process.wait(timeout=10)
        return time.monotonic() - started


def query(what, fields):
    """Rows of nvidia-smi, memory in MiB, and the time in which it ran."""
    start_ns = time.monotonic_ns()
    command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]
    return rows, start_ns - SLACK_NS, time.monotonic_ns() + SLACK_NS


def agrees(name, text, ours, wrong):
    """Compares one figure; returns how many were compared. What one of both does not tell is left out."""
    if not text.isdigit() or not ours:
        return 0
    if not min(ours) - MIB <= int(text) * MIB <= max(ours) + MIB:
        told_mib = sorted({min(ours) // MIB, max(ours) // MIB})
        wrong.append(f"{name} is {text} MiB by nvidia-smi, {told_mib} MiB by the child")
    return 1


def compare_processes(child, wrong):
    """Compares the memory of each process that both know: inside a container the ids differ."""
    rows, start_ns, end_ns = query("compute-apps", "gpu_uuid,pid,used_memory")
    time.sleep(LIST_SLACK_NS / NS)
    told = lambda uuid, pid: child.process_memory(uuid, int(pid), start_ns, end_ns)
    return sum(agrees(f"{uuid}: process {pid}", used, told(uuid, pid), wrong) for uuid, pid, used in rows)


def compare(child, wrong):
    """Compares each GPU's memory; returns how many figures were compared."""
    rows, start_ns, end_ns = query("gpu", "uuid,memory.total,memory.reserved,memory.used,memory.free")
    time.sleep(2 * SLACK_NS / NS)
    compared = 0
    for uuid, *told in rows:
        read = child.window(uuid, start_ns, end_ns)
        if not read:
            wrong.append(f"{uuid}: nothing was read while nvidia-smi ran")
            continue
        for figure, text in zip(FIGURES, told):
            ours = [memory[f"{figure}_bytes"] for memory in read if f"{figure}_bytes" in memory]
            compared += agrees(f"{uuid}: {figure}", text, ours, wrong)
    return compared


def latency(name, messages):
    """Prints the time that calls took."""
    spans = [one["span"] for one in messages]
    took_us = sorted((span["not_after_ns"] - span["not_before_ns"]) / 1_000 for span in spans)
    if not took_us:
        print(f"{name:14} no calls")
        return
    at = lambda share: took_us[min(len(took_us) - 1, int(share * len(took_us)))]
    print(f"{name:14} {len(took_us):6} calls  p50 {at(0.5):9.1f} µs  p99 {at(0.99):9.1f} µs  max {took_us[-1]:9.1f} µs")


def growth(child):
    """Largest change of used memory that the child saw on one device, bytes."""
    used = [[one["memory"]["used_bytes"] for one in list_ if "memory" in one] for list_ in child.readings.values()]
    return max((max(list_) - min(list_) for list_ in used if list_), default=0)


def report(child, seconds, load_steps, compared, wrong):
    latency("memory", [one for list_ in child.readings.values() for one in list_])
    latency("process lists", [one for list_ in child.lists.values() for one in list_])
    if child.health:
        busy = child.health["busy_us"] / 1e6
        print(f"inside NVML    {busy:.3f} s of {seconds:.0f} s; health {child.health['state']}: {child.health['detail']}")
    print(f"events         {[one['what'] for one in child.events]}")
    figures, processes = compared
    print(f"compared       {figures} figures of devices and {processes} of processes with nvidia-smi")
    asked = max(load_steps, default=0) - min(load_steps, default=0)
    print(f"load           {asked // MIB} MiB asked for, a change of {growth(child) // MIB} MiB seen")
    if growth(child) < GROWTH_SEEN * asked or not load_steps:
        wrong.append("the load's allocations were not seen")
    if figures == 0:
        wrong.append("nothing was compared")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--daemon", required=True, help="gpuadmitd")
    parser.add_argument("--load", required=True, help="command that allocates and frees, printing the bytes it holds")
    parser.add_argument("--library", default="libnvidia-ml.so.1")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()

    command = [options.daemon, "nvml-child", "--library", options.library, "--processes-interval-ms", "1000"]
    child = Child(command)
    load = subprocess.Popen(
        shlex.split(options.load), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    load_steps, wrong, compared, processes = [], [], 0, 0
    collect = threading.Thread(target=lambda: load_steps.extend(int(line) for line in load.stdout), daemon=True)
    collect.start()
    try:
        until = time.monotonic() + options.seconds
        time.sleep(min(1.0, options.seconds / 4))
        while time.monotonic() < until and child.process.poll() is None:
            compared += compare(child, wrong)
            processes += compare_processes(child, wrong)
            time.sleep(max(0.0, min(COMPARE_EVERY_SECONDS, until - time.monotonic())))
    finally:
        load.stdin.close()
        load.wait(timeout=30)
        collect.join(timeout=5)
        ended_after = child.end()
    print(f"child ended    {ended_after * 1e3:.0f} ms after it was told; {child.bye}")
    report(child, options.seconds, load_steps, (compared, processes), wrong)
    for complaint in wrong:
        print(f"WRONG: {complaint}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
