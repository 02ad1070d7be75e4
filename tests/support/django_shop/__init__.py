"""Django project for tests/integrations. SHOP_NSQD contains the address of nsqd."""
