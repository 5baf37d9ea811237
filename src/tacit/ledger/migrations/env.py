"""The entry point for Alembic: run all migrations in the given transaction."""

from alembic import context

from tacit.ledger.upgrade import VERSION_TABLE

if hasattr(context, "config"):  # else the module is only imported
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, version_table=VERSION_TABLE)
    context.run_migrations()
