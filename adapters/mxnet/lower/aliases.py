"""Other names of the same operators, as MXNet 1.9.1 registers them."""

from __future__ import annotations

import re

ALIASES = dict(
    pair.split("=")
    for pair in """
    Softmax=SoftmaxOutput concat=Concat split=SliceChannel swapaxes=SwapAxis reshape=Reshape
    flatten=Flatten broadcast_axes=broadcast_axis flip=reverse cast=Cast identity=_copy
    ElementWiseSum=add_n stop_gradient=BlockGrad sum_axis=sum max_axis=max min_axis=min
    _plus=elemwise_add _add=elemwise_add _minus=elemwise_sub _sub=elemwise_sub _mul=elemwise_mul
    _div=elemwise_div broadcast_plus=broadcast_add broadcast_minus=broadcast_sub
    _contrib_SparseEmbedding=Embedding choose_element_0index=pick crop=slice pad=Pad
    _np_product=_np_prod _np_repeat=repeat _np_amax=_np_max _np_amin=_np_min
    _npi_abs=_npi_absolute _npi_amax=_np_max _npi_amin=_np_min _npi_cast=Cast
    _npi_clip=clip _npi_copy=_np_copy _npi_dot=_np_dot _npi_expand_dims=expand_dims _npi_full=_full
    _npi_hypot_scalar=_hypot_scalar _npi_max=_np_max _npi_maximum=broadcast_maximum
    _npi_maximum_scalar=_maximum_scalar _npi_min=_np_min _npi_minimum=broadcast_minimum
    _npi_minimum_scalar=_minimum_scalar _npi_prod=_np_prod _npi_reshape=_npx_reshape
    _npi_rnn_param_concat=_rnn_param_concat _npi_slice=slice _npi_split=_split_v2
    _npi_squeeze=_np_squeeze _npi_sum=_np_sum _npi_swapaxes=SwapAxis _npi_take=take
    _npi_tile=tile _npi_transpose=_np_transpose
    _npx_activation=Activation _npx_batch_dot=batch_dot _npx_batch_flatten=Flatten
    _npx_batch_norm=BatchNorm _npx_cast=Cast _npx_convolution=Convolution
    _npx_deconvolution=Deconvolution _npx_pooling=Pooling _npx_dropout=Dropout
    _npx_embedding=Embedding _npx_erf=erf _npx_fully_connected=FullyConnected
    _npx_layer_norm=LayerNorm _npx_leaky_relu=LeakyReLU _npx_log_softmax=log_softmax
    _npx_one_hot=one_hot _npx_pick=pick _npx_reshape_like=reshape_like _npx_rnn=RNN
    _npx_sequence_mask=SequenceMask _npx_slice=slice _npx_softmax=softmax
    """.split()
)


def names_of(name: str) -> list[str]:
    """An operator's name, and others of the same.

    ``_sparse_relu`` is ``relu`` on any storage, and ``_PlusScalar`` is ``_plus_scalar`` of old.
    """
    plain = name.removeprefix("_sparse_")
    if re.match("_[A-Z]", name):
        plain = re.sub(r"(?<=[a-z])_?(?=[A-Z])", "_", name).lower()
    return [name, plain, ALIASES.get(name, ""), ALIASES.get(plain, "")]
