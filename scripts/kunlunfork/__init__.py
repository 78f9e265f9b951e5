"""kunlunfork: keeps a small, current fork of vLLM for Baidu's Kunlun XPU."""

__version__ = "0.1.0"
