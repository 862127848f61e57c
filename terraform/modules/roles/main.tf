# Each kind of program may do what it needs and nothing else: policies.json is what `tiered iam-policy` prints for a bucket,
# a prefix and a KMS key, with the statements that this module leaves out unless asked for. A test compares the two.

locals {
  left_out = concat(
    var.kms_key_arn == null ? ["Key", "PinKey"] : [],
    var.reader_pins ? [] : ["Pin", "PinKey"],
    var.missing_is_404 ? [] : ["MissingIs404"],
  )
  key_arn = var.kms_key_arn == null ? "" : var.kms_key_arn

  # The roles come from the file alone, so that they are known before the bucket is.
  policies = { for role, document in jsondecode(file("${path.module}/policies.json")) : role => replace(replace(replace(
    jsonencode({
      Version   = document.Version
      Statement = [for statement in document.Statement : statement if !contains(local.left_out, statement.Sid)]
    }),
    "$${bucket_arn}", var.bucket_arn), "$${prefix}", var.prefix), "$${kms_key_arn}", local.key_arn)
  }

  assumed = { for role, principals in var.trusted : role => principals if length(principals) > 0 }
}

resource "aws_iam_policy" "role" {
  for_each = local.policies

  name        = "${var.name}-${each.key}"
  description = "${title(each.key)} of the tiered log below ${var.prefix == "" ? "the bucket" : var.prefix}"
  policy      = each.value
  tags        = var.tags
}

resource "aws_iam_role" "role" {
  for_each = local.assumed

  name = "${var.name}-${each.key}"
  tags = var.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { AWS = each.value }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "role" {
  for_each = local.assumed

  role       = aws_iam_role.role[each.key].name
  policy_arn = aws_iam_policy.role[each.key].arn
}
