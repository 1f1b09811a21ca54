"""Contract suites: what every engine of a port must do."""

import pytest

pytest.register_assert_rewrite("contract.tree_contract")
