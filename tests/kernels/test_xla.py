from attention_suite import AttentionSuite


class TestXla(AttentionSuite):
    backend = "xla"


class TestReference(AttentionSuite):
    backend = "reference"
