"""What to change where a known fault explains a difference."""

ADVICE = {
    "gates_swapped": "Compare the order of the gates in both files with the frameworks'"
    " documentation: the blocks of weights and biases are taken for each other.",
    "update_sign": "One side keeps the old state with the update gate, the other one replaces it"
    " (Paddle's origin_mode): negate the update gate's weights and bias, or set the attribute.",
    "reset_placement": "One side resets the state before the recurrent product, the other one its"
    " result: set linear_before_reset (ONNX) or reset_after (Keras) accordingly.",
    "bias_merged": "The framework has two biases, of the input and of the recurrent product: keep"
    " both; a GRU that resets after the product needs the candidate's apart.",
    "bias_doubled": "The same bias is added twice: in the projection and again in the layer, or"
    " once for the input and once for the state. Set one of them to zero.",
    "h0_dropped": "Feed the initial state to the recurrent operator: a converter or a fusion pass"
    " has left that input out.",
    "mask_ignored": "Give the sentence lengths to the recurrent operator (sequence_lens in ONNX,"
    " use_sequence_length in MXNet, SequenceLength in Paddle).",
    "reverse_padded": "Reverse each sentence within its own length, not the padded row: give the"
    " lengths to the backward direction.",
    "clip_ignored": "Carry the clipping attribute over: clip (ONNX), lstm_state_clip_min and _max"
    " (MXNet), cell_clip (Keras).",
    "weight_transposed": "Transpose the weight: one side stores (out, in), the other (in, out).",
    "direction_swapped": "Exchange the forward and the backward direction: of the weights, or of"
    " the outputs.",
}
"""What to change, by the id of a cause."""
