"""Allocates and frees device memory with PyTorch until standard input ends; prints what it holds, in bytes.

Each step is held for some seconds, so that two readers that are a fraction of a second apart see the same.
"""

import sys
import threading

import torch

MIB = 1 << 20
STEPS_MIB = [256, 2048, 512, 4096, 0]
HOLD_SECONDS = 4.0


def main() -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    torch.zeros(1, device="cuda")
    while True:
        for step in STEPS_MIB:
            held = torch.empty(step * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            print(held.numel(), flush=True)
            if ended.wait(HOLD_SECONDS):
                return
            del held
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
