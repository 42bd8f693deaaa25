"""What a compiled program takes: operations, memory, seconds, and the accelerators to compile for."""
