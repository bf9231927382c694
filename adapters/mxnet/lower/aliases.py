"""Other names of the same operators, as MXNet 1.9.1 registers them."""

from __future__ import annotations

ALIASES = dict(
    pair.split("=")
    for pair in """
    Softmax=SoftmaxOutput concat=Concat split=SliceChannel swapaxes=SwapAxis reshape=Reshape
    flatten=Flatten broadcast_axes=broadcast_axis flip=reverse cast=Cast identity=_copy
    ElementWiseSum=add_n _np_repeat=repeat _npi_tile=tile _npi_clip=clip _npi_full=_full
    _Plus=elemwise_add _plus=elemwise_add _add=elemwise_add _Minus=elemwise_sub
    _minus=elemwise_sub _sub=elemwise_sub _Mul=elemwise_mul _mul=elemwise_mul _Div=elemwise_div
    _div=elemwise_div stop_gradient=BlockGrad
    _Power=_power _Maximum=_maximum _Minimum=_minimum
    _Equal=_equal _Not_Equal=_not_equal _Greater=_greater _Greater_Equal=_greater_equal
    _Lesser=_lesser _Lesser_Equal=_lesser_equal
    _Logical_And=_logical_and _Logical_Or=_logical_or _Logical_Xor=_logical_xor
    broadcast_plus=broadcast_add broadcast_minus=broadcast_sub
    _PlusScalar=_plus_scalar _MinusScalar=_minus_scalar _RMinusScalar=_rminus_scalar
    _MulScalar=_mul_scalar _DivScalar=_div_scalar _RDivScalar=_rdiv_scalar
    _PowerScalar=_power_scalar _RPowerScalar=_rpower_scalar
    _MaximumScalar=_maximum_scalar _MinimumScalar=_minimum_scalar
    _EqualScalar=_equal_scalar _NotEqualScalar=_not_equal_scalar
    _GreaterScalar=_greater_scalar _GreaterEqualScalar=_greater_equal_scalar
    _LesserScalar=_lesser_scalar _LesserEqualScalar=_lesser_equal_scalar
    _npi_maximum=broadcast_maximum _npi_minimum=broadcast_minimum
    _npi_hypot_scalar=_hypot_scalar _npi_maximum_scalar=_maximum_scalar _npi_minimum_scalar=_minimum_scalar
    _Mod=_mod _ModScalar=_mod_scalar _RModScalar=_rmod_scalar _Hypot=_hypot
    _HypotScalar=_hypot_scalar _LogicalAndScalar=_logical_and_scalar
    _LogicalOrScalar=_logical_or_scalar _LogicalXorScalar=_logical_xor_scalar
    sum_axis=sum max_axis=max min_axis=min _np_amax=_np_max _np_amin=_np_min
    _contrib_SparseEmbedding=Embedding _sparse_Embedding=Embedding
    _sparse_FullyConnected=FullyConnected _sparse_dot=dot
    _npi_expand_dims=expand_dims _npi_take=take _npi_slice=slice _npi_swapaxes=SwapAxis
    _npi_split=_split_v2 _npi_cast=Cast _npi_reshape=_npx_reshape
    _npi_rnn_param_concat=_rnn_param_concat
    _npi_transpose=_np_transpose _npi_squeeze=_np_squeeze _npi_copy=_np_copy _npi_dot=_np_dot
    _npi_sum=_np_sum _npi_prod=_np_prod _npi_max=_np_max _npi_amax=_np_max _npi_min=_np_min
    _npi_amin=_np_min
    _npx_activation=Activation _npx_batch_dot=batch_dot _npx_batch_flatten=Flatten
    _npx_batch_norm=BatchNorm _npx_cast=Cast _npx_dropout=Dropout _npx_embedding=Embedding
    _npx_erf=erf _npx_fully_connected=FullyConnected _npx_layer_norm=LayerNorm
    _npx_leaky_relu=LeakyReLU _npx_log_softmax=log_softmax _npx_one_hot=one_hot _npx_pick=pick
    _npx_reshape_like=reshape_like _npx_rnn=RNN _npx_sequence_mask=SequenceMask
    _npx_slice=slice _npx_softmax=softmax
    """.split()
)
