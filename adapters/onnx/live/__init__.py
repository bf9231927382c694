"""Our recurrent layers inside ONNX Runtime."""
