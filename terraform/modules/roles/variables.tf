variable "bucket_arn" {
  description = "ARN of the bucket."
  type        = string
}

variable "prefix" {
  description = "Where the log lies in the bucket: empty, or a path that ends in a slash (logs/). The same as in modules/bucket."
  type        = string
  default     = ""

  validation {
    condition     = var.prefix == "" || can(regex("^([^/*?]+/)+$", var.prefix))
    error_message = "The prefix is empty or ends in a slash, and has no empty part, * or ?."
  }
}

variable "kms_key_arn" {
  description = "The KMS key of the bucket, or null."
  type        = string
  default     = null
}

variable "name" {
  description = "Policies and roles are called NAME-writer, NAME-reader and so on."
  type        = string
  default     = "tieredlog"
}

variable "trusted" {
  description = "Who may assume each role (ARNs of users, roles or accounts); a role is made where the list is not empty."
  type = object({
    writer     = optional(list(string), [])
    reader     = optional(list(string), [])
    consumer   = optional(list(string), [])
    maintainer = optional(list(string), [])
    auditor    = optional(list(string), [])
    spark      = optional(list(string), [])
    sink       = optional(list(string), [])
    repair     = optional(list(string), [])
  })
  default = {}
}

variable "reader_pins" {
  description = "Let readers pin what they read, so that collection waits for them: write access to pin/ objects only."
  type        = bool
  default     = false
}

variable "missing_is_404" {
  description = <<-TEXT
    S3 answers 403, not 404, for an absent key to callers without s3:ListBucket, and a listing that is limited by
    prefix does not count. Programs must tell "absent" from "refused", so this allows s3:ListBucket where the request
    carries no prefix at all: which is what that check looks like, but also a listing of the whole bucket.
    Set it to false only where the bucket holds secrets in key names: an absent topic is then reported as a refusal.
  TEXT
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of policies and roles."
  type        = map(string)
  default     = {}
}
