"""Server of one reward model or teacher in plain PyTorch: `python -m services.gpu_manager.torch_server --model FOLDER`.

It needs torch, tokenizers, aiohttp and msgspec, and nothing else of the mesh. Only modules that compute import torch.
"""
