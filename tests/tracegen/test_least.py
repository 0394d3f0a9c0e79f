"""Whichever instructions a processor has: of equal scores those of the first columns are chosen."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tracegen.shared.least import least


@given(data=st.data())
def test_the_least_are_the_first_of_a_stable_order(data: st.DataObject) -> None:
    few = st.sampled_from([0.0, 1.0, 2.0, np.inf])  # so that most are equal
    shape = data.draw(array_shapes(min_dims=2, max_dims=2, max_side=40))
    scores = data.draw(arrays(np.float32, shape, elements=few))
    count = data.draw(st.integers(1, shape[1]))
    assert (least(scores, count) == np.sort(np.argsort(scores, axis=1, kind="stable")[:, :count], axis=1)).all()
