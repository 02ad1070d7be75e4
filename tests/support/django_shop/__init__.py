"""Django project of tests/integrations. SHOP_NSQD has the address of nsqd."""
