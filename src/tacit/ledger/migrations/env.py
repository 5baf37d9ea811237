"""What Alembic runs: all steps in the transaction that it is given."""

from alembic import context

from tacit.ledger.upgrade import VERSION_TABLE

if hasattr(context, "config"):  # or this file is only looked at
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, version_table=VERSION_TABLE)
    context.run_migrations()
