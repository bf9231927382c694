"""Turns a graph into a plan that one C call runs; sessions, streams, generated C++."""
