"""Migrations of ledgers from earlier versions."""
