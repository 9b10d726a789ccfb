"""Learn CartPole: python learn.py BUNDLE ITERATIONS WEIGHTS. What was learned goes to a safetensors
file, with the names of the model."""

import sys
import time

import numpy as np
from safetensors.numpy import save_file

import lumc

RATE = 3e-3  # at first; it falls to a tenth

path, iterations, weights = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with lumc.load(path) as bundle:
    start = time.process_time()
    for i in range(iterations):
        bundle.run({}, entry="rollout")
        bundle.run({}, entry="look_back")
        rate = np.float32(RATE * (1 - 0.9 * i / iterations))
        bundle.run({"rate": rate}, entry="learn")
    seconds = time.process_time() - start
    lasted = bundle.run({"seed": np.int64(1)}, entry="test")["length"]
    kept = bundle.state()
    episodes, steps = int(kept["ended"]), iterations * kept["done"].size
    print(f"{steps} steps of {episodes} episodes in {seconds:.0f} s of a processor")
    print(f"{lasted.size} episodes of the test last {lasted.mean():.0f} steps each")
learned = ("w1", "b1", "w2", "b2")
save_file({name: v for name, v in kept.items() if name.endswith(learned)}, weights)
