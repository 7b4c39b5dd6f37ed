"""Puts this folder, and with it `support`, on the import path of all tests below it."""
