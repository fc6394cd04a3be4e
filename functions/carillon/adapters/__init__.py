"""The only modules that know boto3."""
