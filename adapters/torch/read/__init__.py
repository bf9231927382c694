"""PyTorch's files: exported programs, what torch.save wrote, TorchScript, safetensors."""
