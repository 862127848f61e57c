# Three kinds of programs, each with no more than it needs of exactly the key layout of a log:
#
#   {prefix}topics/{topic}                      topic registry, compare-and-swap
#   {prefix}{h2}/{topic_id}-{partition}/root    the catalog, compare-and-swap
#   {prefix}{h2}/{topic_id}-{partition}/p/...   catalog pages        create-only
#   {prefix}{h2}/{topic_id}-{partition}/s/...   segments, indexes    create-only
#   {prefix}{h2}/{topic_id}-{partition}/pin/... pins of readers
#   {prefix}{h2}/{topic_id}-{partition}/hist/.. history of roots     create-only
#   {prefix}txn/...                             decisions of sinks   create-only
#   {prefix}jobs/...                            plans and receipts of bulk jobs
#   {prefix}probe/...                           what the store can do: created and deleted at start

locals {
  objects   = "${var.bucket_arn}/${var.prefix}"
  partition = "${local.objects}??/*"

  topics   = "${local.objects}topics/*"
  roots    = "${local.partition}/root"
  pages    = "${local.partition}/p/*"
  segments = "${local.partition}/s/*"
  pins     = "${local.partition}/pin/*"
  history  = "${local.partition}/hist/*"
  txns     = "${local.objects}txn/*"
  jobs     = "${local.objects}jobs/*"
  probes   = "${local.objects}probe/*"
  log      = [local.topics, local.roots, local.pages, local.segments, local.pins, local.history, local.txns]

  # `check`, `restore` and `repair advice` list the prefix itself, to find what a lost registry entry no longer names.
  # It tells a role names of keys, and of sizes, never more bytes than it may get. Other prefixes stay out.
  named = [for kind in ["", "topics/*", "??/*"] : "${var.prefix}${kind}"]
  listed = {
    reader     = local.named
    writer     = local.named
    maintainer = concat(local.named, [for kind in ["txn/*", "jobs/*"] : "${var.prefix}${kind}"])
  }

  list = { for role, prefixes in local.listed : role => concat(
    [{
      Sid       = "List"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = [var.bucket_arn]
      Condition = { StringLike = { "s3:prefix" = prefixes } }
    }],
    var.missing_is_404 ? [{
      Sid       = "MissingIs404"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = [var.bucket_arn]
      Condition = { Null = { "s3:prefix" = "true" } }
    }] : [],
  ) }

  key = { for role, actions in {
    reader     = var.reader_pins ? ["kms:Decrypt", "kms:GenerateDataKey"] : ["kms:Decrypt"]
    writer     = ["kms:Decrypt", "kms:GenerateDataKey"] # Decrypt also for multipart uploads
    maintainer = ["kms:Decrypt", "kms:GenerateDataKey"]
    } : role => var.kms_key_arn == null ? [] : [{
      Sid      = "Key"
      Effect   = "Allow"
      Action   = actions
      Resource = [var.kms_key_arn]
  }] }

  # Tags select segments for lifecycle rules (kind=segment); a PUT that carries them needs s3:PutObjectTagging.
  create = ["s3:PutObject", "s3:PutObjectTagging", "s3:AbortMultipartUpload"]

  statements = {
    reader = concat(
      [
        { Sid = "Read", Effect = "Allow", Action = ["s3:GetObject"], Resource = concat(local.log, [local.probes]) },
      ],
      var.reader_pins ? [
        { Sid = "Pin", Effect = "Allow", Action = ["s3:PutObject", "s3:DeleteObject"], Resource = [local.pins] },
      ] : [],
    )

    # A writer deletes nothing but its own probes: a stolen key of a writer cannot take history away.
    writer = [
      { Sid = "Read", Effect = "Allow", Action = ["s3:GetObject"], Resource = concat(local.log, [local.probes]) },
      { Sid = "Create", Effect = "Allow", Action = local.create, Resource = [local.segments, local.pages, local.history, local.txns] },
      { Sid = "Swap", Effect = "Allow", Action = ["s3:PutObject"], Resource = [local.roots, local.topics] },
      { Sid = "Probe", Effect = "Allow", Action = ["s3:PutObject", "s3:DeleteObject"], Resource = [local.probes] },
    ]

    # Deletes leave noncurrent versions behind (no s3:DeleteObjectVersion), so a mistake can be undone for a while.
    maintainer = [
      { Sid = "Read", Effect = "Allow", Action = ["s3:GetObject"], Resource = concat(local.log, [local.jobs, local.probes]) },
      { Sid = "Create", Effect = "Allow", Action = local.create, Resource = [local.segments, local.pages, local.history, local.jobs] },
      { Sid = "Swap", Effect = "Allow", Action = ["s3:PutObject"], Resource = [local.roots, local.topics, local.pins] },
      { Sid = "Collect", Effect = "Allow", Action = ["s3:DeleteObject"], Resource = [local.segments, local.pages, local.pins, local.history, local.jobs] },
      { Sid = "Probe", Effect = "Allow", Action = ["s3:PutObject", "s3:DeleteObject"], Resource = [local.probes] },
    ]
  }

  policies = { for role in ["reader", "writer", "maintainer"] : role => jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.statements[role], local.list[role], local.key[role])
  }) }

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
