"""Simulated vLLM nodes and traffic: real HTTP servers without GPUs."""
