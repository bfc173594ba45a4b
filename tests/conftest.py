"""One thread a test process: two run side by side."""

import torch

torch.set_num_threads(1)
