mock_provider "aws" {
  override_resource {
    target = aws_s3_bucket.log
    values = { id = "unit-test-log", arn = "arn:aws:s3:::unit-test-log" }
  }
}

variables {
  name   = "unit-test-log"
  prefix = "logs/"
}

run "safe_by_default" {
  command = apply

  assert {
    condition     = aws_s3_bucket_versioning.log.versioning_configuration[0].status == "Enabled"
    error_message = "versioning must be on"
  }
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.log.block_public_acls,
      aws_s3_bucket_public_access_block.log.block_public_policy,
      aws_s3_bucket_public_access_block.log.ignore_public_acls,
      aws_s3_bucket_public_access_block.log.restrict_public_buckets,
    ])
    error_message = "public access must be blocked in all four ways"
  }
  assert {
    condition     = aws_s3_bucket_ownership_controls.log.rule[0].object_ownership == "BucketOwnerEnforced"
    error_message = "ACLs must be off"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.log.rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "encryption with the keys of S3 is the default"
  }
  assert {
    condition     = aws_s3_bucket.log.force_destroy == false
    error_message = "a bucket with data must survive a destroy"
  }
  assert {
    condition     = jsondecode(output.policy).Statement[0].Condition.Bool["aws:SecureTransport"] == "false"
    error_message = "plain http must be denied"
  }
  assert {
    condition     = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.log.rule : length([for e in rule.expiration : e if try(e.days, null) != null && try(e.days, 0) > 0]) == 0])
    error_message = "no rule may expire current objects"
  }
  assert {
    condition = {
      for rule in aws_s3_bucket_lifecycle_configuration.log.rule : rule.id => rule.noncurrent_version_expiration[0].noncurrent_days
      if length(rule.noncurrent_version_expiration) > 0
    } == { "noncurrent-roots" = 7, "noncurrent" = 30, "noncurrent-groups" = 1 }
    error_message = "segments come back for 30 days, all versions of roots for 7, those of groups for 1"
  }
  assert {
    condition = one([
      for rule in aws_s3_bucket_lifecycle_configuration.log.rule : rule.noncurrent_version_expiration[0].newer_noncurrent_versions
      if rule.id == "noncurrent-roots"
    ]) == 1
    error_message = "the only old version of a segment is spared by the rule for roots"
  }
  assert {
    condition     = output.url == "s3://unit-test-log/logs"
    error_message = "the url names bucket and prefix"
  }
}

run "kms_when_asked" {
  command = plan

  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  }

  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.log.rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms"
    error_message = "a KMS key must be used when given"
  }
  assert {
    condition     = one(aws_s3_bucket_server_side_encryption_configuration.log.rule).bucket_key_enabled
    error_message = "without a bucket key each object costs a KMS request"
  }
}

run "prefix_without_slash_is_refused" {
  command = plan

  variables {
    prefix = "logs"
  }

  expect_failures = [var.prefix]
}

run "instant_expiry_is_refused" {
  command = plan

  variables {
    noncurrent_days      = 0
    noncurrent_root_days = 0
  }

  expect_failures = [var.noncurrent_days, var.noncurrent_root_days]
}
