"""The cluster as nsqadmin sees it: nsqds, their answers, and the requests to them."""
