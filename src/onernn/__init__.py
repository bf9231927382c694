"""onernn: one RNN primitive under every framework."""
