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
    "activation_changed": "Set the activations of the recurrent operator as the reference has"
    " them: frameworks differ in their defaults (Keras 2 had hard_sigmoid), and converters drop"
    " them.",
    "attribute_changed": "Set the attribute as the reference has it: it was not carried over, or"
    " replaced by a default.",
    "weights_rounded": "Convert again from weights of full precision: these went through a narrow"
    " type, or allow for it with --atol and --rtol.",
    "weights_changed": "Read these weights again from the reference's file: they are of another"
    " layer, another checkpoint, or were changed in between.",
    "bias_changed": "Read this bias again from the reference's file.",
    "bias_shifted": "The same number was added to all units of a gate, as Keras's"
    " unit_forget_bias or a forget bias of TensorFlow is: add it once.",
    "bias_zeroed": "Set the bias: the file has zeros in its place.",
    "constant_changed": "Set the constant as the reference has it.",
    "states_exchanged": "Exchange the initial states again: of the hidden and the cell state, or"
    " of the layers.",
    "layers_exchanged": "Give each layer its own weights: they were written in another order.",
    "input_exchanged": "Connect the input as the reference does.",
    "operator_missing": "Put the operator in its place: the exporter or a pass left it out.",
    "operator_added": "Take the operator out: the reference does not have it.",
    "operator_changed": "Replace the operators by the reference's.",
}
"""What to change, by the id of a cause."""
