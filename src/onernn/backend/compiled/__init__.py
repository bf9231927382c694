"""The kernels in the wheel: recurrent layers in C++, compiled for several instruction sets."""
