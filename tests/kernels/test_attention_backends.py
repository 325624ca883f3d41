from attention_suite import AttentionSuite


class TestXla(AttentionSuite):
    backend = "xla"


class TestReference(AttentionSuite):
    backend = "reference"
    compiler_options = {"xla_backend_optimization_level": 0}      # noqa: RUF012  half the time to compile
