"""What is done to publish a version: archives are built, and what they depend on is audited."""
