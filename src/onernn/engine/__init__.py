"""Runs graphs: plans that one C call runs, sessions, streams, generated C++."""
