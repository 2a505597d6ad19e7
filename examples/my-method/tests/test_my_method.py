from bouquet.testing import MethodContract


class TestMyMethod(MethodContract):
    method = "my-method"
