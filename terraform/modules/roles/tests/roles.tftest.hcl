mock_provider "aws" {
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/mock" }
  }
}

variables {
  bucket_arn = "arn:aws:s3:::unit-test-log"
  prefix     = "logs/"
}

run "least_privilege" {
  command = apply

  assert {
    condition     = alltrue([for s in jsondecode(output.policies.writer).Statement : s.Sid == "Probe" || !contains(s.Action, "s3:DeleteObject")])
    error_message = "a writer deletes nothing but probes"
  }
  assert {
    condition     = alltrue([for s in jsondecode(output.policies.reader).Statement : alltrue([for a in s.Action : contains(["s3:GetObject", "s3:ListBucket"], a)])])
    error_message = "a reader only reads"
  }
  assert {
    condition     = alltrue([for json in output.policies : !strcontains(json, "*\"]") || !strcontains(json, "s3:*")])
    error_message = "no policy allows every action"
  }
  assert {
    condition     = alltrue([for json in output.policies : !strcontains(json, "DeleteObjectVersion")])
    error_message = "nobody may delete old versions"
  }
  assert {
    condition     = alltrue([for json in output.policies : length(json) < 6144])
    error_message = "a managed policy has at most 6144 characters"
  }
  assert {
    condition = alltrue([for role, json in output.policies : !contains(["spark", "sink"], role) == contains(flatten([
      for s in jsondecode(json).Statement : try(s.Condition.StringLike["s3:prefix"], [])
    ]), "logs/")])
    error_message = "check, restore and repair list the prefix of the log"
  }
  assert {
    condition = alltrue([for json in output.policies : alltrue(flatten([
      for s in jsondecode(json).Statement : [for p in try(s.Condition.StringLike["s3:prefix"], []) : startswith(p, "logs/")]
    ]))])
    error_message = "nothing outside the prefix is listed"
  }
  assert {
    condition     = length(output.role_arns) == 0
    error_message = "no role without somebody who may assume it"
  }
}

run "pins_only_when_asked_for" {
  command = apply

  variables {
    reader_pins    = true
    missing_is_404 = false
    kms_key_arn    = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  }

  assert {
    condition = (
      contains([for s in jsondecode(output.policies["reader"]).Statement : s.Sid], "Pin") &&
    strcontains(output.policies["reader"], "kms:GenerateDataKey"))
    error_message = "who pins writes an object, and needs the key for it"
  }
  assert {
    condition     = alltrue([for json in output.policies : !strcontains(json, "MissingIs404")])
    error_message = "the plain 404 is left out"
  }
}

run "roles_for_the_trusted" {
  command = apply

  variables {
    trusted     = { writer = ["arn:aws:iam::123456789012:root"] }
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
  }

  assert {
    condition     = keys(output.role_arns) == ["writer"]
    error_message = "exactly the role that was asked for"
  }
  assert {
    condition     = alltrue([for json in output.policies : strcontains(json, "kms:Decrypt")])
    error_message = "everybody who reads needs the key"
  }
  assert {
    condition     = !strcontains(output.policies.reader, "kms:GenerateDataKey")
    error_message = "a reader encrypts nothing"
  }
}

run "wildcard_in_prefix_is_refused" {
  command = plan

  variables {
    prefix = "logs*/"
  }

  expect_failures = [var.prefix]
}
